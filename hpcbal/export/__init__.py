"""Write trained DNNs, and their ensemble, in formats that load without hpcbal."""

from hpcbal.export.ensemble import export_ensemble
from hpcbal.export.exporting import export_dnn

__all__ = ["export_dnn", "export_ensemble"]
