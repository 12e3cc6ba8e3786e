"""Working and execution state, and the one prompt that they and the memory are compiled into."""
