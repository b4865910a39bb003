"""Pure: rows in an order that a restart can repeat, and the plan that names it. A digest says what came of it."""
