"""Effects of events that come with graphweft and need no rule file; see ``packs.pack`` for what a pack is."""
