"""A layered memory: short-, mid- and long-term memory, and key memories that steer every answer."""
