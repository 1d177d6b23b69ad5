//! Collectives beyond those that DDP itself needs: tensors of different lengths, parts for each
//! rank, messages between two ranks, and Rust values.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use crate::error::{Error, Result};
use crate::group::{ProcessGroup, ReduceOp, Work, in_place_ok};

impl ProcessGroup {
    /// The tensors of all ranks, in rank order, which may differ in their first dimension only.
    ///
    /// # Errors
    /// The tensor has no dimension, the other dimensions or kinds differ, or a rank failed.
    pub fn all_gather_ragged(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let Some(n_rows) = tensor.size().first().copied() else {
            return Err(Error::Argument(
                "all_gather_ragged: a scalar has no first dimension; use `all_gather`".to_owned(),
            ));
        };
        let lengths = self.all_gather(&Tensor::from_slice(&[n_rows]))?;
        let lengths: Vec<i64> = lengths.iter().map(|length| length.int64_value(&[0])).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(lengths.iter().map(|_| tensor.detach().copy()).collect());
        }
        let mut shape = tensor.size();
        shape[0] = longest;
        let padded = Tensor::zeros(shape.as_slice(), (tensor.kind(), tensor.device()));
        padded.narrow(0, 0, n_rows).copy_(&tensor.detach());
        let gathered = self.all_gather(&padded)?;
        Ok(gathered.iter().zip(lengths).map(|(all, length)| all.narrow(0, 0, length)).collect())
    }

    /// The tensors of all ranks, in rank order, on rank `root`; nothing on the others. All must
    /// have the same shape and kind.
    ///
    /// # Errors
    /// There is no such rank, or a rank failed.
    pub fn gather(&self, tensor: &Tensor, root: usize) -> Result<Option<Vec<Tensor>>> {
        self.check_root("gather", root)?;
        let input = tensor.detach().contiguous();
        let is_root = self.rank() == root;
        let n_outputs = if is_root { self.world_size() } else { 0 };
        let outputs: Vec<Tensor> = (0..n_outputs).map(|_| input.empty_like()).collect();
        self.complete("gather", |group| group.gather(&input, &outputs, root))?;
        Ok(is_root.then_some(outputs))
    }

    /// Gives each rank its part: rank `r` gets `parts[r]` of rank `root` into `output`, in place.
    /// `parts` matters on the root only; all must have `output`'s shape and kind.
    ///
    /// # Errors
    /// There is no such rank, the root has not one part per rank, a part does not fit, or a rank
    /// failed.
    pub fn scatter(&self, output: &Tensor, parts: &[Tensor], root: usize) -> Result<()> {
        self.check_root("scatter", root)?;
        in_place_ok("scatter", output)?;
        let parts = if self.rank() == root { self.parts("scatter", parts)? } else { Vec::new() };
        self.complete("scatter", |group| group.scatter(output, &parts, root))
    }

    /// Sums the ranks' `parts` place by place; rank `r` gets the sum of all `parts[r]` into
    /// `output`, in place.
    ///
    /// # Errors
    /// There is not one part per rank, a part does not fit, or a rank failed.
    pub fn reduce_scatter(&self, output: &Tensor, parts: &[Tensor]) -> Result<()> {
        in_place_ok("reduce_scatter", output)?;
        let parts = self.parts("reduce_scatter", parts)?;
        self.complete("reduce_scatter", |group| group.reduce_scatter(output, &parts, ReduceOp::Sum))
    }

    /// Sends `tensor` to rank `to`, which must call [`ProcessGroup::recv`] with the same tag.
    ///
    /// # Errors
    /// There is no such rank, it is this one, or a rank failed.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: u16) -> Result<()> {
        self.check_other("send", to)?;
        let tensor = tensor.detach().contiguous();
        self.complete("send", |group| group.send(&tensor, to, i32::from(tag)))
    }

    /// Receives a tensor of `tensor`'s shape and kind from rank `from`, in place.
    ///
    /// # Errors
    /// As for [`ProcessGroup::send`].
    pub fn recv(&self, tensor: &Tensor, from: usize, tag: u16) -> Result<()> {
        self.recv_async(tensor, from, tag)?.wait()
    }

    /// As [`ProcessGroup::recv`], returning at once.
    ///
    /// # Errors
    /// As for [`ProcessGroup::send`].
    pub fn recv_async(&self, tensor: &Tensor, from: usize, tag: u16) -> Result<Work> {
        self.check_other("recv", from)?;
        in_place_ok("recv", tensor)?;
        self.start("recv", |group| group.recv(tensor, from, i32::from(tag)))
    }

    /// The values of all ranks, in rank order; any that serde can write as JSON.
    ///
    /// # Errors
    /// The value cannot be written or read, or a rank failed.
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let bytes = to_json("all_gather_object", value)?;
        let gathered = self.all_gather_bytes(&bytes)?;
        gathered.iter().map(|bytes| from_json("all_gather_object", bytes)).collect()
    }

    /// The value of rank `root`, on every rank. `value` matters on the root only.
    ///
    /// # Errors
    /// There is no such rank, the value cannot be written or read, or a rank failed.
    pub fn broadcast_object<T>(&self, value: Option<&T>, root: usize) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        self.check_root("broadcast_object", root)?;
        // An error of the root must reach the others, which wait for its value.
        let own = match value.filter(|_| self.rank() == root) {
            Some(value) => to_json("broadcast_object", value).map_err(|error| error.to_string()),
            None if self.rank() == root => Err(format!("rank {root} gave no value to broadcast")),
            None => Ok(Vec::new()),
        };
        let (bytes, outcome) = match own {
            Ok(bytes) => (bytes, Ok(())),
            Err(reason) => (Vec::new(), Err(reason)),
        };
        if let Some((_, reason)) = self.agree(outcome)? {
            return Err(Error::Argument(reason));
        }
        let length = Tensor::from_slice(&[bytes.len() as i64]);
        self.broadcast(&length, root)?;
        let mut padded = bytes;
        padded.resize(length.int64_value(&[0]) as usize, 0);
        let data = Tensor::from_slice(&padded);
        self.broadcast(&data, root)?;
        from_json("broadcast_object", &Vec::<u8>::try_from(&data)?)
    }

    fn parts(&self, operation: &str, parts: &[Tensor]) -> Result<Vec<Tensor>> {
        if parts.len() == self.world_size() {
            return Ok(parts.iter().map(|part| part.detach().contiguous()).collect());
        }
        let reason = format!(
            "{operation}: there are {} parts for {} ranks; give one part per rank",
            parts.len(),
            self.world_size()
        );
        self.give_up(&reason);
        Err(Error::Argument(reason))
    }

    fn check_other(&self, operation: &str, rank: usize) -> Result<()> {
        self.check_root(operation, rank)?;
        if rank != self.rank() {
            return Ok(());
        }
        Err(Error::Argument(format!("{operation}: rank {rank} is this rank itself")))
    }
}

fn to_json<T: Serialize>(operation: &str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::Argument(format!("{operation}: cannot write the value: {error}")))
}

fn from_json<T: DeserializeOwned>(operation: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Argument(format!("{operation}: cannot read the value: {error}")))
}
