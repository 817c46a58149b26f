//! Arithmetic behind joining checksums: polynomials over GF(2) modulo the Castagnoli polynomial.
//!
//! The checksum of `a` followed by `b` is `crc(a) · x^(8·|b|) + crc(b)` (RFC 3720 names the
//! polynomial; that a CRC is linear in this way follows from its definition as a remainder). The
//! powers x^(8·2^k) stand in a table that the compiler makes, so that a join costs one multiplication
//! per bit set in the length, and one more. Numbers are in the reflected order that CRC32C uses: the
//! highest bit is x^0.

/// The Castagnoli polynomial without its leading term, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(8·2^k) for each bit k of a length.
static POWERS: [u32; 64] = powers();

/// Product of two polynomials, modulo the polynomial. Without branches on its arguments.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= b & ((a << bit >> 31).wrapping_neg());
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit += 1;
    }
    product
}

const fn powers() -> [u32; 64] {
    // x^1, squared three times, is x^8: one byte.
    let mut power = 1 << 30;
    let mut squared = 0;
    while squared < 3 {
        power = multiply(power, power);
        squared += 1;
    }
    let mut table = [0; 64];
    let mut rest: &mut [u32] = &mut table;
    while let Some((first, others)) = rest.split_first_mut() {
        *first = power;
        power = multiply(power, power);
        rest = others;
    }
    table
}

/// `crc · x^(8·length)`: what a checksum contributes once `length` bytes have followed.
pub(crate) fn shift(crc: u32, length: u64) -> u32 {
    let set = POWERS.iter().enumerate().filter(|(bit, _)| length >> bit & 1 == 1);
    set.fold(crc, |shifted, (_, power)| multiply(*power, shifted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_is_neutral_and_x_to_the_32_is_the_polynomial() {
        assert_eq!(multiply(1 << 31, 0x1234_5678), 0x1234_5678);
        // x^16 · x^16 = x^32, which is the polynomial without its leading term.
        assert_eq!(multiply(1 << 15, 1 << 15), POLYNOMIAL);
        assert_eq!(POWERS[0], 1 << 23);
    }

    #[test]
    fn a_shift_by_nothing_changes_nothing_and_one_by_everything_ends() {
        assert_eq!(shift(0xdead_beef, 0), 0xdead_beef);
        assert_ne!(shift(0xdead_beef, u64::MAX), 0);
    }

    proptest! {
        #[test]
        fn products_commute_and_distribute(a: u32, b: u32, c: u32) {
            prop_assert_eq!(multiply(a, b), multiply(b, a));
            prop_assert_eq!(multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
        }

        #[test]
        fn shifts_add_up(crc: u32, n: u32, m: u32) {
            prop_assert_eq!(shift(shift(crc, u64::from(n)), u64::from(m)), shift(crc, u64::from(n) + u64::from(m)));
        }

        #[test]
        fn a_shift_is_what_the_library_does(crc: u32, next: u32, length in 0_usize..(1 << 40)) {
            prop_assert_eq!(shift(crc, length as u64) ^ next, crc32c::crc32c_combine(crc, next, length));
        }
    }
}
