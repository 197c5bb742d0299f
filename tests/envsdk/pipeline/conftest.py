"""The tiny policies that the tests of trainers use."""

from tests.trainers.conftest import model_folder, untied_model_folder

__all__ = ["model_folder", "untied_model_folder"]
