//! Which instruction sets this machine has, and how code is compiled for each of them.
//!
//! The choice is made once, at run time. `SLUICE_CPU=avx512|avx2|portable` asks for a slower path
//! than the best one, to test it or to compare.

use std::fmt;
use std::sync::OnceLock;

/// The code paths of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// AVX-512 (F, BW, VL, DQ) with VNNI: Zen 4 and later, Ice Lake and later.
    Avx512Vnni,
    /// AVX2, FMA and F16C: Haswell and later, every Zen.
    Avx2,
    /// Plain Rust, any machine.
    Portable,
}

/// The code path in use. Holding a `Cpu` is the proof that this machine can run it: there is no
/// way to make one for a path that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(Path);

/// `SLUICE_CPU` names a path that does not exist or that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCpu {
    asked: String,
}

impl fmt::Display for UnknownCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Cpu::supported().into_iter().map(Cpu::name).collect();
        let (asked, names) = (&self.asked, names.join(", "));
        write!(f, "SLUICE_CPU={asked} cannot be used here: this machine has {names}")
    }
}

impl std::error::Error for UnknownCpu {}

impl Cpu {
    /// The path in use: `SLUICE_CPU` if it names one that this machine has, else the best.
    /// A start-up that wants to tell its user about a bad name calls [`Cpu::from_env`].
    #[must_use]
    pub fn detect() -> Cpu {
        static CHOSEN: OnceLock<Cpu> = OnceLock::new();
        *CHOSEN.get_or_init(|| Cpu::from_env().unwrap_or_else(|_| Cpu::best()))
    }

    /// The path that `SLUICE_CPU` names, or the best if it is unset or empty.
    ///
    /// # Errors
    /// The name is unknown, or this machine lacks the path.
    pub fn from_env() -> Result<Cpu, UnknownCpu> {
        match std::env::var("SLUICE_CPU") {
            Ok(name) if !name.is_empty() => Cpu::from_name(&name),
            _ => Ok(Cpu::best()),
        }
    }

    /// The path of this name (see [`Cpu::name`]).
    ///
    /// # Errors
    /// The name is unknown, or this machine lacks the path.
    pub fn from_name(name: &str) -> Result<Cpu, UnknownCpu> {
        let found = Cpu::supported().into_iter().find(|cpu| cpu.name() == name);
        found.ok_or_else(|| UnknownCpu { asked: name.to_owned() })
    }

    /// All paths that this machine can run, the best first.
    #[must_use]
    pub fn supported() -> Vec<Cpu> {
        let all = [Path::Avx512Vnni, Path::Avx2, Path::Portable];
        all.into_iter().filter(|&path| has(path)).map(Cpu).collect()
    }

    /// Which path this is.
    #[must_use]
    pub fn path(self) -> Path {
        self.0
    }

    /// The name that `SLUICE_CPU` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Path::Avx512Vnni => "avx512",
            Path::Avx2 => "avx2",
            Path::Portable => "portable",
        }
    }

    fn best() -> Cpu {
        Cpu::supported()[0]
    }
}

#[cfg(target_arch = "x86_64")]
fn has(path: Path) -> bool {
    let avx2 = || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    };
    match path {
        Path::Avx512Vnni => {
            avx2()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
        }
        Path::Avx2 => avx2(),
        Path::Portable => true,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(path: Path) -> bool {
    path == Path::Portable
}

/// Compiles one plain body for each code path and picks by a leading [`Cpu`] argument, so that the
/// compiler vectorises it for each. Floating-point results are the same bits on every path: Rust
/// neither fuses nor reorders them.
macro_rules! multiversion {
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? $body:block) => {
        $(#[$attr])*
        $vis fn $name(cpu: $crate::cpu::Cpu, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }
            match cpu.path() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a `Cpu` of this path exists only where its features do.
                $crate::cpu::Path::Avx512Vnni => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::cpu::Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_path_is_found_by_its_name_and_no_other() {
        let supported = Cpu::supported();
        assert_eq!(supported.last().map(|cpu| cpu.path()), Some(Path::Portable));
        for &cpu in &supported {
            assert_eq!(Cpu::from_name(cpu.name()), Ok(cpu));
        }
        let error = Cpu::from_name("mmx").unwrap_err().to_string();
        assert!(error.contains("SLUICE_CPU=mmx") && error.contains("portable"), "{error}");
    }
}
