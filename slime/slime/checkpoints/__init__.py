"""Write checkpoint folders atomically, on ranks that succeed or fail together."""
