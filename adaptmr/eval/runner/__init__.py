"""Asks every system every question, and finds out what the run was made of."""
