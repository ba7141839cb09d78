use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Bytes, Tensor};

/// A kind of tensor whose bytes may be borrowed.
pub(super) trait Storage: Basic + Autodiff + Sized + 'static {
    /// The bytes of a tensor whose backend keeps them in host memory in one piece, shared and not copied. `None` for any
    /// other, and for one that autodiff tracks.
    fn host_bytes<const D: usize>(tensor: &Tensor<D, Self>) -> Option<Bytes>;
}

#[cfg(not(feature = "flex"))]
impl<K: Basic + Autodiff + 'static> Storage for K {
    fn host_bytes<const D: usize>(_tensor: &Tensor<D, Self>) -> Option<Bytes> {
        None
    }
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::kind::{Autodiff, Basic};
    use burn::tensor::{AllocationProperty, BackendPrimitive, Bytes, Tensor};

    use super::Storage;

    /// Flex has one type for tensors of every kind.
    type FlexTensor = FloatTensor<Flex>;

    impl<K> Storage for K
    where
        K: Basic + Autodiff + BackendPrimitive<Flex, Primitive = FlexTensor> + 'static,
    {
        fn host_bytes<const D: usize>(tensor: &Tensor<D, Self>) -> Option<Bytes> {
            let tensor = tensor.clone().try_into_primitive::<Flex>().ok()?;
            let (start, end) = tensor.layout().contiguous_offsets()?;
            let size = tensor.dtype().size();
            let bytes = bytes::Bytes::from_owner(Held(tensor)).slice(start * size..end * size);
            Some(Bytes::from_shared(bytes, AllocationProperty::Native))
        }
    }

    /// Keeps the storage alive; a write to the tensor goes to a copy as long as this is there.
    struct Held(FlexTensor);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }
}
