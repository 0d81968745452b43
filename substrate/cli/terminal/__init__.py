"""What commands show on a terminal, and what they ask there."""
