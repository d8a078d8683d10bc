"""A third party's driver that cannot be imported, as one whose vendor's library is of another version."""

raise ImportError("libbroken.so.3: cannot open shared object file")
