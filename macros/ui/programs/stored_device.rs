// A model that remembers its device is warned about.
#![deny(deprecated)]

use tch::{Device, Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    device: Device,
}

impl Net {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.to_device(self.device).apply(&self.fc)
    }
}

fn main() {}
