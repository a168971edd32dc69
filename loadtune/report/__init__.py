"""Show and hand over: a result on disk, as text, as code. Reads records, judges nothing, touches no device."""
