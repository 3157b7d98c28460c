"""Environments in which agents look for answers step by step."""
