"""Model views of what kernels say: pure functions and bounded accumulators over output values."""

from replsvc.output.images import image_pixels, image_size
from replsvc.output.mime import mime_image, mime_text
from replsvc.output.result import clean_traceback, result_text
from replsvc.output.terminal import strip_ansi
from replsvc.output.view import Keep, ModelView, View, clip, tokens_estimate

__all__ = [
    "Keep",
    "ModelView",
    "View",
    "clean_traceback",
    "clip",
    "image_pixels",
    "image_size",
    "mime_image",
    "mime_text",
    "result_text",
    "strip_ansi",
    "tokens_estimate",
]
