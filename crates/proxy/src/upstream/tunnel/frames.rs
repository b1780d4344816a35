//! Finds where WebSocket frames end, so that the gateway never writes a frame of its own into the middle of another.

/// Follows a stream of frames, byte by byte, without keeping any.
#[derive(Debug, Default)]
pub(super) struct Frames {
    state: State,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    /// Between two frames.
    #[default]
    Boundary,
    /// The second byte follows: mask and length.
    Length,
    /// `left` more bytes of an extended length follow.
    Extended { left: u8, length: u64, masked: bool },
    /// This many bytes of mask and payload follow.
    Rest(u64),
}

impl Frames {
    /// Follows bytes that were written.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            (self.state, bytes) = match self.state {
                State::Boundary => (State::Length, rest),
                State::Length => (Self::after_length(first), rest),
                State::Extended { left, length, masked } => {
                    let length = length.wrapping_shl(8) | u64::from(first);
                    let state = match left {
                        1 => Self::payload(length, masked),
                        _ => State::Extended { left: left - 1, length, masked },
                    };
                    (state, rest)
                }
                State::Rest(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let state = match left - here as u64 {
                        0 => State::Boundary,
                        left => State::Rest(left),
                    };
                    (state, bytes.get(here..).unwrap_or_default())
                }
            };
        }
    }

    fn after_length(byte: u8) -> State {
        let masked = byte & 0x80 != 0;
        match byte & 0x7f {
            126 => State::Extended { left: 2, length: 0, masked },
            127 => State::Extended { left: 8, length: 0, masked },
            length => Self::payload(u64::from(length), masked),
        }
    }

    fn payload(length: u64, masked: bool) -> State {
        match length.saturating_add(if masked { 4 } else { 0 }) {
            0 => State::Boundary,
            rest => State::Rest(rest),
        }
    }

    /// Whether no frame is incomplete.
    pub(super) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Boundary)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame as a WebSocket peer writes it.
    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = vec![0x82];
        match length {
            0..126 => frame.push(mask | u8::try_from(length).unwrap()),
            126..65_536 => {
                frame.push(mask | 0x7e);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(mask | 0x7f);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if masked {
            frame.extend([1, 2, 3, 4]);
        }
        frame.extend(std::iter::repeat_n(0x88, length));
        frame
    }

    proptest! {
        #[test]
        fn the_end_of_each_frame_is_a_boundary_and_nothing_else_is(
            lengths in prop::collection::vec((prop_oneof![0..130usize, 65_500..65_600usize], any::<bool>()), 1..6),
            cuts in prop::collection::vec(1..5000usize, 1..20),
        ) {
            let (mut stream, mut ends) = (Vec::new(), vec![0]);
            for (length, masked) in lengths {
                stream.extend(frame(length, masked));
                ends.push(stream.len());
            }
            let (mut frames, mut at) = (Frames::default(), 0);
            for cut in cuts.iter().cycle() {
                prop_assert_eq!(frames.at_boundary(), ends.contains(&at));
                if at == stream.len() {
                    break;
                }
                let next = (at + cut).min(stream.len());
                frames.add(&stream[at..next]);
                at = next;
            }
        }
    }
}
