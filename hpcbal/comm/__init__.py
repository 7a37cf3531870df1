"""How ranks talk and wait: channels for control messages, patient collectives, pauses that burn no core."""
