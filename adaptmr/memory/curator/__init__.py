"""Curates the memory of a team: facts from observations, lessons, links, forgetting, and when to inject."""
