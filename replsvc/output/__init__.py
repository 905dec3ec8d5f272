"""Model views of what kernels say: pure functions and bounded accumulators over output values."""

from replsvc.output.images import image_pixels, image_size
from replsvc.output.mime import inline, mime_text
from replsvc.output.page import Page
from replsvc.output.pictures import Picture, Unshown, candidates, fit
from replsvc.output.result import clean_traceback, result_text
from replsvc.output.terminal import strip_ansi
from replsvc.output.view import LONG_CHARS, ModelView, View, clip, tokens_estimate

__all__ = [
    "LONG_CHARS",
    "ModelView",
    "Page",
    "Picture",
    "Unshown",
    "View",
    "candidates",
    "clean_traceback",
    "clip",
    "fit",
    "image_pixels",
    "image_size",
    "inline",
    "mime_text",
    "result_text",
    "strip_ansi",
    "tokens_estimate",
]
