//! A fuzz case: requests, their mutations, and how their bytes are split into writes.

use crate::grammar::Message;
use crate::mutate::Mutation;
use crate::random::CaseRandom;

/// A case, determined by its seed and number.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) number: u64,
    messages: Vec<Message>,
    mutations: Vec<Mutation>,
    /// How often the bytes are cut, and where.
    cuts: (usize, u64),
}

impl Case {
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut random = CaseRandom::new(seed, number);
        let messages = (0..=random.below(4)).map(|index| Message::new(number, index, &mut random)).collect();
        let mutations = match random.below(20) {
            0..=7 => 0,
            8..=15 => 1,
            16..=18 => 2,
            _ => 3,
        };
        let mutations = (0..mutations).map(|_| Mutation::new(&mut random)).collect();
        let cuts = match random.below(20) {
            0..=9 => 0,
            10..=18 => 1 + random.below(4),
            _ => 100,
        };
        Self { number, messages, mutations, cuts: (cuts, random.next()) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut messages, mut bytes) = (self.messages.clone(), Vec::new());
        for mutation in &self.mutations {
            mutation.on_messages(&mut messages);
        }
        for message in &messages {
            message.render(&mut bytes);
        }
        for mutation in &self.mutations {
            mutation.on_bytes(&mut bytes);
        }
        bytes
    }

    /// The bytes in as many pieces as there are writes.
    pub(crate) fn pieces<'a>(&self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let (count, seed) = self.cuts;
        let mut random = CaseRandom::new(seed, 3);
        let mut cuts: Vec<usize> = (0..count).map(|_| random.below(bytes.len())).collect();
        cuts.sort_unstable();
        let (mut pieces, mut before) = (Vec::new(), 0);
        for cut in cuts {
            let (piece, rest) = bytes.split_at(cut - before);
            (bytes, before) = (rest, cut);
            pieces.push(piece);
        }
        pieces.push(bytes);
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// All cases with one part less, for shrinking.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for at in 0..self.messages.len() {
            let mut less = self.clone();
            less.messages.remove(at);
            all.push(less);
        }
        for at in 0..self.mutations.len() {
            let mut less = self.clone();
            less.mutations.remove(at);
            all.push(less);
        }
        for (message, at) in
            self.messages.iter().enumerate().flat_map(|(n, m)| (0..m.headers.len()).map(move |at| (n, at)))
        {
            let mut less = self.clone();
            less.messages[message].headers.remove(at);
            all.push(less);
        }
        if self.cuts.0 > 0 {
            all.push(Self { cuts: (0, 0), ..self.clone() });
        }
        all
    }
}
