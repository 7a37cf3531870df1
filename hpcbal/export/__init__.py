"""Write a trained DNN in formats that load without hpcbal."""

from hpcbal.export.exporting import Exported, export_dnn

__all__ = ["Exported", "export_dnn"]
