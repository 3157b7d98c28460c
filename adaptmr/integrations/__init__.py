"""A store as a retriever of other libraries; each module needs the library that it is named after."""
