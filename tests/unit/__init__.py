"""Fast tests of single modules: no network, no server, no sleeping."""
