"""Fits what ships fitted: fusion weights, relevance, and heads that classify questions."""
