"""Write trained DNNs, and their ensemble, in formats that load without hpcbal."""

from hpcbal.export.ensemble import ExportedEnsemble, export_ensemble
from hpcbal.export.exporting import Exported, export_dnn

__all__ = ["Exported", "ExportedEnsemble", "export_dnn", "export_ensemble"]
