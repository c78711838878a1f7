"""The engine as a library, in three programs that run as they stand."""
