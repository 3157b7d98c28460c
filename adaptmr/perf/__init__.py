"""Speed and size: benchmarks against goals, growth to a million memories."""
