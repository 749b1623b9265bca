"""Back ends: inference engines and trainers."""
