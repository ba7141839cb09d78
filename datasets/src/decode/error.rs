//! Why a picture is refused.

use image::ImageError;

/// Why bytes are not decoded to an image. The message says why, [`remedy`](Self::remedy) what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They are no image, or one of another format.
    #[error("this is no JPEG or PNG image but {found}")]
    Format {
        /// What they look like, such as `a GIF image`.
        found: &'static str,
    },
    /// They end before the image does.
    #[error("the image is cut off: its data end after {bytes} bytes")]
    Truncated {
        /// How many bytes there are.
        bytes: usize,
    },
    /// The file is larger than it may be; it was not decoded.
    #[error("the file has more than {max_bytes} bytes")]
    FileTooLarge {
        /// The limit.
        max_bytes: u64,
    },
    /// The image is larger than it may be; none of its pixels was decoded.
    #[error("the image of {width}x{height} pixels is too large: at most {max_pixels} pixels are decoded")]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The limit.
        max_pixels: u64,
    },
    /// The decoder would need more memory than it may.
    #[error(
        "decoding the image of {width}x{height} pixels takes {bytes} bytes, more than the limit of {max_bytes}"
    )]
    Memory {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// What the pixels take as they are stored, such as 8 bytes each for 16-bit RGBA.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A progressive JPEG file has so many passes over the image that decoding it would take too long.
    #[error("the JPEG image has more than {max_scans} scans")]
    Scans {
        /// The limit.
        max_scans: usize,
    },
    /// The decoder says that the data are damaged, or of a kind that it does not know.
    #[error("the image is damaged or of an unknown kind: {0}")]
    Damaged(#[source] ImageError),
}

impl DecodeError {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Format { .. } => "give a JPEG or PNG image",
            Self::Truncated { .. } => "give the whole file",
            Self::FileTooLarge { .. } | Self::TooLarge { .. } | Self::Memory { .. } => {
                "make the image smaller"
            }
            Self::Scans { .. } | Self::Damaged(_) => "save the image anew as JPEG or PNG",
        }
    }
}
