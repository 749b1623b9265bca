"""What every training back end shares: its data, its schedule, and the folders it writes."""
