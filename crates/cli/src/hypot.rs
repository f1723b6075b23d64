//! `hypotf` of the C library, which plots use. glibc has given it a newer version of its symbol in 2.35. A binary with
//! that symbol does not start on distributions with an older glibc, of which RHEL 9 is one.

/// Returns the length of the hypotenuse (C23 section 7.12.7.4). Squares of `f32` neither overflow nor vanish in `f64`.
#[unsafe(no_mangle)]
extern "C" fn hypotf(x: f32, y: f32) -> f32 {
    if x.is_infinite() || y.is_infinite() {
        return f32::INFINITY;
    }
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::hypotf;

    #[test]
    fn special_values_are_those_of_the_standard() {
        assert_eq!(hypotf(3.0, -4.0), 5.0);
        assert_eq!(hypotf(f32::MAX, 0.0), f32::MAX);
        assert_eq!(hypotf(f32::MIN_POSITIVE, 0.0), f32::MIN_POSITIVE);
        assert_eq!(hypotf(f32::NEG_INFINITY, f32::NAN), f32::INFINITY);
        assert!(hypotf(1.0, f32::NAN).is_nan());
    }
}
