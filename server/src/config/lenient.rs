//! Deserialization in passes, each of which leaves out the entries that were wrong in those before.

use std::collections::HashMap;
use std::{fmt, mem};

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde_saphyr::{Location, Spanned};

/// The path to an entry: an index per level, outermost first.
pub(super) type EntryPath = Vec<usize>;
/// The name of the field per level of such a path. `None` for elements of lists and keys of maps.
pub(super) type Names = Vec<Option<Spanned<String>>>;

/// The position of a pass, and what it has found.
#[derive(Debug, Default)]
pub(super) struct Pass {
    path: EntryPath,
    names: Names,
    /// The innermost entry with the error, if that is within an outer one.
    failed: Option<(EntryPath, Names)>,
    /// The entries to leave out.
    pub(super) skipped: HashMap<EntryPath, Names>,
    /// The places of fields, by names such as `store.redis`. Without those in lists.
    pub(super) fields: HashMap<String, Location>,
}

impl Pass {
    pub(super) fn restart(&mut self) {
        self.path.clear();
        self.names.clear();
        self.failed = None;
    }

    /// The innermost entry with the error. The path is empty if it is the document as a whole.
    pub(super) fn failed(&mut self) -> (EntryPath, Names) {
        let position = (&mut self.path, &mut self.names);
        self.failed.take().unwrap_or_else(|| (mem::take(position.0), mem::take(position.1)))
    }

    fn enter(&mut self, number: usize) {
        self.path.push(number);
        self.names.push(None);
    }

    fn leave(&mut self) {
        self.path.pop();
        self.names.pop();
    }

    fn is_skipping(&self) -> bool {
        self.skipped.contains_key(&self.path)
    }

    fn found_field(&mut self, name: &Spanned<String>) {
        if let Some(last) = self.names.last_mut() {
            *last = Some(name.clone());
        }
        let name_of = |name: &Option<Spanned<String>>| Some(name.as_ref()?.value.clone());
        let names: Option<Vec<_>> = self.names.iter().map(name_of).collect();
        if let Some(names) = names {
            self.fields.insert(names.join("."), name.referenced);
        }
    }

    /// Records the innermost entry, which an error reaches first.
    fn watch<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() && self.failed.is_none() {
            self.failed = Some((self.path.clone(), self.names.clone()));
        }
        result
    }
}

/// The kind of a mapping, as its visitor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Map,
    Struct,
    /// The mapping that a `Spanned` expects. Its value does not count as an entry.
    Spanned,
}

/// A deserializer, visitor or seed that takes part in a pass.
pub(super) struct Lenient<'a, T> {
    inner: T,
    pass: &'a mut Pass,
    shape: Shape,
}

impl<'a, T> Lenient<'a, T> {
    pub(super) fn new(inner: T, pass: &'a mut Pass) -> Self {
        Self { inner, pass, shape: Shape::Map }
    }

    fn with<U>(self, inner: U, shape: Shape) -> (T, Lenient<'a, U>) {
        (self.inner, Lenient { inner, pass: self.pass, shape })
    }
}

macro_rules! forward {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        }
    )*};
}

/// Wraps only what can contain entries.
impl<'de, D: Deserializer<'de>> Deserializer<'de> for Lenient<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_bool
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
        deserialize_ignored_any
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let shape = self.shape;
        let (inner, visitor) = self.with(visitor, shape);
        match shape {
            Shape::Spanned => inner.deserialize_any(visitor),
            _ => inner.deserialize_any(visitor.inner),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.with(visitor, Shape::Map);
        inner.deserialize_option(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.with(visitor, Shape::Map);
        inner.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.with(visitor, Shape::Map);
        inner.deserialize_map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.with(visitor, Shape::Struct);
        inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.with(visitor, Shape::Spanned);
        inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, visitor)
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Lenient<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<V::Value, D::Error> {
        let (visitor, some) = self.with(some, Shape::Map);
        visitor.visit_some(some)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        let shape = self.shape;
        let (visitor, value) = self.with(value, shape);
        visitor.visit_newtype_struct(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Entries {
            inner: elements,
            pass: self.pass,
            number: 0,
            has_names: false,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let Self { inner, pass, shape } = self;
        match shape {
            Shape::Spanned => {
                inner.visit_map(SpannedParts { inner: entries, pass, is_value: false })
            }
            _ => {
                let has_names = shape == Shape::Struct;
                inner.visit_map(Entries { inner: entries, pass, number: 0, has_names })
            }
        }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Lenient<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        let (seed, value) = self.with(value, Shape::Map);
        seed.deserialize(value)
    }
}

/// The entries of a mapping or a list, without those to leave out.
struct Entries<'a, A> {
    inner: A,
    pass: &'a mut Pass,
    /// The number of the next entry.
    number: usize,
    has_names: bool,
}

impl<A> Entries<'_, A> {
    /// Goes to the next entry that is not skipped.
    fn advance<E>(&mut self, mut skip: impl FnMut(&mut A) -> Result<(), E>) -> Result<(), E> {
        loop {
            self.pass.enter(self.number);
            self.number += 1;
            if !self.pass.is_skipping() {
                return Ok(());
            }
            let skipped = skip(&mut self.inner);
            self.pass.watch(skipped)?;
            self.pass.leave();
        }
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Entries<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.advance(|elements| elements.next_element::<IgnoredAny>().map(drop))?;
        let element = self.inner.next_element_seed(Lenient::new(seed, self.pass));
        let element = self.pass.watch(element)?;
        self.pass.leave();
        Ok(element)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.advance(|entries| entries.next_entry::<IgnoredAny, IgnoredAny>().map(drop))?;
        let key = if self.has_names {
            let name = self.inner.next_key::<Spanned<String>>();
            self.pass.watch(name)?.map(|name| {
                self.pass.found_field(&name);
                seed.deserialize(name.value.into_deserializer())
            })
        } else {
            self.inner.next_key_seed(seed).transpose()
        };
        let key = self.pass.watch(key.transpose())?;
        if key.is_none() {
            self.pass.leave();
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let value = self.inner.next_value_seed(Lenient::new(seed, self.pass));
        let value = self.pass.watch(value)?;
        self.pass.leave();
        Ok(value)
    }
}

/// The value of a `Spanned`, and its place.
struct SpannedParts<'a, A> {
    inner: A,
    pass: &'a mut Pass,
    is_value: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SpannedParts<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let Some(name) = self.inner.next_key::<String>()? else { return Ok(None) };
        self.is_value = name == "value";
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.is_value {
            self.inner.next_value_seed(Lenient::new(seed, self.pass))
        } else {
            self.inner.next_value_seed(seed)
        }
    }
}
