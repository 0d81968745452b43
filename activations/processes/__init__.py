"""Programs that are run for somebody: started without blocking, and ended with all they started."""
