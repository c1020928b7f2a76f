from hopline.doors import brought

__getattr__ = brought(__name__)
