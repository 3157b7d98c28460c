"""Sentence vectors: encoders by name, with a cache that processes share."""
from adaptmr.embed.encoders import Embedder, HashEmbedder, TextEmbedder, VectorMiss, embedder, shared_cache
from adaptmr.embed.names import embedder_for
from adaptmr.embed.vector_cache import VectorCache, cache_dir

__all__ = ["Embedder", "HashEmbedder", "TextEmbedder", "VectorCache", "VectorMiss", "cache_dir", "embedder", "embedder_for", "shared_cache"]
