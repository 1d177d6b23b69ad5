// The attribute on an alias.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
type Net = (nn::Linear, Tensor);

fn main() {}
