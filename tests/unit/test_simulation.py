"""The real orchestrator and the real workers, in a thousand simulated worlds where everything fails.

To see what happened in one: `World(seed, "/tmp", trace=print).run()`.
"""
