//! Constructors of objects that contain objects of the models.

/// Defines a constructor that is `const` outside of the models: loom's objects cannot be made at
/// compile time.
macro_rules! const_new {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty
     $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $name($($arg: $ty),*) -> $ret $body

        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}

pub(crate) use const_new;
