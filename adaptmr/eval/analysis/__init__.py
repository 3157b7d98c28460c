"""What a run shows: where systems fail and why, what is left to gain, what it costs."""
