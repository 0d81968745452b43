"""Sandboxes for child programs: profiles, hidden and protected paths, and their enforcement."""
