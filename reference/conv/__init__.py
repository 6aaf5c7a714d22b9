"""Convolutions over tokens."""
