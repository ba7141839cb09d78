//! Shared by the recipes.
