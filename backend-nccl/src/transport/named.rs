//! Options that have a name in the environment and on command lines.

/// Shows and reads a type by its `name`s, of which `ALL` has every one.
macro_rules! named {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            /// The one of a name; else the text of what would be right.
            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|one| one.name() == name);
                found.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
            }
        }
    };
}
pub(super) use named;
