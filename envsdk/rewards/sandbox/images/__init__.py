"""Images from Dockerfiles, for the backends that can build them: `build_image`."""

from envsdk.rewards.sandbox.images.build import Build, build_image, named_image

__all__ = ["Build", "build_image", "named_image"]
