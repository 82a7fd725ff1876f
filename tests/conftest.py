"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A deadline, or a look at how long examples take, would measure the machine.
settings.register_profile("loadgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loadgen")
