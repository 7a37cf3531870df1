"""The former name of `resume_json`, until its callers use the new one."""

from hpcbal.control.resume_json import round_plan_from_dict, round_plan_to_dict

__all__ = ["round_plan_from_dict", "round_plan_to_dict"]
