"""Events as careless and hostile producers write them, through all that a worker does before a graph sees them."""
