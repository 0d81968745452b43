"""Child programs: started without blocking, and ended with all processes that they started."""
