//! How a rank leaves: once its operations have ended, or at once.

use std::{net::Shutdown, sync::PoisonError};

use stubs::lock;

use super::{Communicator, Phase, State};
use crate::{
    code,
    library::{Outcome, library},
    wire::{self, Message},
};

impl Communicator {
    pub(super) fn finalized(&self, state: &mut State) {
        if state.phase == Phase::Finalizing {
            state.phase = Phase::Finalized;
            self.leave();
        }
    }

    /// Ends the use for operations; those that were started go on.
    pub(crate) fn finalize(&self) -> Outcome {
        let mut state = lock(&self.state);
        if state.phase != Phase::Ready || state.waiting.is_some() {
            let text = format!("ncclCommFinalize: the communicator is not ready ({:?})", state.phase);
            return library().refuse(code::INVALID_USAGE, text);
        }
        state.phase = Phase::Finalizing;
        if !self.blocking {
            state.polls = library().config().in_progress_polls;
            return Err(code::IN_PROGRESS);
        }
        while state.ended < state.launched && state.phase != Phase::Aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.finalized(&mut state);
        Ok(())
    }

    /// Ends it, once the operations have ended.
    pub(crate) fn destroy(&self) {
        library().remove(self.handle);
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Connecting | Phase::Finalizing) || state.waiting.is_some() {
            let text = format!("ncclCommDestroy: the call before is in progress ({:?})", state.phase);
            library().double.fault(text);
        }
        while state.ended < state.launched && state.phase != Phase::Aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.phase != Phase::Finalized {
            self.leave();
        }
    }

    /// Ends it at once: operations return, and the others learn nothing.
    pub(crate) fn abort(&self) {
        library().remove(self.handle);
        lock(&self.state).phase = Phase::Aborted;
        self.changed.notify_all();
        if let Some(socket) = lock(&self.socket).take() {
            // It fails where the hub has gone, which is all the same now.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn leave(&self) {
        if let Some(socket) = lock(&self.socket).take() {
            // It fails where the hub has gone, which is all the same now.
            let _ = wire::write(&socket, &Message::Bye, &[]);
        }
    }
}
