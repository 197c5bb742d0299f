"""Environments that ship with envsdk. They register as anybody else's: entry-point group `envsdk.envs`."""
