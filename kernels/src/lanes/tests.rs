//! Every path against plain f64 arithmetic, and the vector paths against each other.

use half::f16;
use proptest::prelude::*;

use super::*;

struct Exp<'a>(&'a [f32; LANES]);
impl Kernel for Exp<'_> {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        lanes.store(lanes.exp(lanes.load(self.0)), &mut out);
        out
    }
}

struct Folds<'a>(&'a [f32; LANES]);
impl Kernel for Folds<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> (f32, f32) {
        let x = lanes.load(self.0);
        (lanes.sum(x), lanes.largest(x))
    }
}

struct Halves<'a>(&'a [f32; LANES]);
impl Kernel for Halves<'_> {
    type Output = ([f16; LANES], [f32; LANES]);
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> ([f16; LANES], [f32; LANES]) {
        let (mut halves, mut back) = ([f16::ZERO; LANES], [0.0; LANES]);
        lanes.store_f16(lanes.load(self.0), &mut halves);
        lanes.store(lanes.load_f16(&halves), &mut back);
        (halves, back)
    }
}

proptest! {
    #[test]
    fn exp_is_within_two_units_in_the_last_place(x in prop::array::uniform16(-120.0_f32..88.0)) {
        for cpu in Cpu::supported() {
            for (x, got) in x.iter().zip(dispatch(cpu, Exp(&x))) {
                let want = if *x >= -87.3 { f64::from(*x).exp() } else { 0.0 };
                let error = (f64::from(got) - want).abs();
                prop_assert!(error <= want * 2.4e-7, "{cpu:?}: e^{x} = {want}, not {got}");
            }
        }
    }

    #[test]
    fn folds_give_the_same_bits_on_every_path(x in prop::array::uniform16(-1e3_f32..1e3)) {
        let expected = dispatch(*Cpu::supported().last().unwrap(), Folds(&x));
        prop_assert_eq!(expected.1, x.into_iter().fold(f32::MIN, f32::max));
        for cpu in Cpu::supported() {
            prop_assert_eq!(dispatch(cpu, Folds(&x)), expected);
        }
    }

    #[test]
    fn halves_are_rounded_to_nearest_and_never_overflow(
        x in prop::array::uniform16(-1e5_f32..1e5),
    ) {
        let nearest = x.map(|x| f16::from_f32(x.clamp(-65504.0, 65504.0)));
        for cpu in Cpu::supported() {
            prop_assert_eq!(dispatch(cpu, Halves(&x)), (nearest, nearest.map(f16::to_f32)));
        }
    }
}

#[test]
fn exp_of_the_ends_of_the_scale_is_finite_and_exact_where_it_must_be() {
    let mut x = [0.0; LANES];
    x[1] = f32::NEG_INFINITY;
    x[2] = f32::MAX;
    for cpu in Cpu::supported() {
        let e = dispatch(cpu, Exp(&x));
        assert_eq!((e[0], e[1], e[2].is_finite()), (1.0, 0.0, true), "{cpu:?}");
    }
}
