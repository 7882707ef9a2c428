//! Images are made grey and blurred: the stage `read` takes them from PPM and PGM files, or makes
//! one; two replicas of `blur` work on them; `write` says what it has got, and writes the results
//! of files beside them. Pixels are [`Blob`]s, which go to another group by bulk transfer.
//!
//! ```text
//! cargo build --release -p margo-stream --examples
//! groups=stream/examples/image_pipeline.json
//! target/release/examples/image_pipeline --group G2 $groups &
//! target/release/examples/image_pipeline [FILE...] --group G1 $groups; wait
//! ```
//!
//! Without `--group` all of it runs in this process. `photo.ppm` becomes `photo.blurred.pgm`.

use std::fs;
use std::path::Path;

use margo_stream::graph::{Blob, BoxError, Graph};
use serde::{Deserialize, Serialize};

/// An image without its pixels, which are bytes: one each, or red, green and blue.
#[derive(Serialize, Deserialize)]
struct Image {
    /// The file that it is from.
    file: Option<String>,
    width: usize,
    height: usize,
    colours: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut files, arguments) = Graph::split_args(std::env::args().skip(1));
    files.resize(files.len().max(1), String::new());

    let graph = Graph::new();
    graph
        .source("read", files)
        .try_map(|file| if file.is_empty() { Ok(make()) } else { read(file) })
        .blob_stage("blur")
        .replicas(2)
        .map(|(image, pixels)| blur(image, &pixels))
        .blob_stage("write")
        .try_for_each(|(image, pixels)| write(&image, &pixels));
    graph.run_from_args(arguments)?;
    Ok(())
}

/// A square on a gradient.
fn make() -> (Image, Blob) {
    let (width, height) = (640, 480);
    let pixel = |at: usize| {
        let (x, y) = (at % width, at / width);
        let is_square = x.abs_diff(320) < 100 && y.abs_diff(240) < 100;
        if is_square { [255, 128, 0] } else { [0, (x * 255 / width) as u8, (y / 2) as u8] }
    };
    let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
    (Image { file: None, width, height, colours: 3 }, pixels.into())
}

fn read(file: String) -> Result<(Image, Blob), BoxError> {
    let mut bytes = fs::read(&file).map_err(|error| format!("{file}: {error}"))?;
    let Some((mut image, begin)) = header(&bytes) else {
        return Err(format!("{file}: neither a binary PPM nor PGM of 255 shades").into());
    };
    image.file = Some(file);
    bytes.drain(..begin);
    Ok((image, bytes.into()))
}

/// Reads the words before the pixels, and finds where these begin.
fn header(bytes: &[u8]) -> Option<(Image, usize)> {
    let (mut words, mut at) = (Vec::new(), 0);
    while words.len() < 4 {
        let end = if bytes.get(at)? == &b'#' { b"\n".as_slice() } else { b" \t\r\n" };
        let len = bytes[at..].iter().position(|byte| end.contains(byte))?;
        let word = std::str::from_utf8(&bytes[at..at + len]).ok()?;
        if !word.is_empty() && !word.starts_with('#') {
            words.push(word);
        }
        at += len + 1;
    }
    let colours = match (words[0], words[3]) {
        ("P5", "255") => 1,
        ("P6", "255") => 3,
        _ => return None,
    };
    let (width, height) = (words[1].parse::<usize>().ok()?, words[2].parse::<usize>().ok()?);
    let is_whole = width.checked_mul(height)?.checked_mul(colours)? == bytes.len() - at;
    is_whole.then_some((Image { file: None, width, height, colours }, at))
}

/// Makes an image grey, and each pixel of it the mean of those that touch it.
fn blur(image: Image, pixels: &[u8]) -> (Image, Blob) {
    let Image { width, height, colours, .. } = image;
    let mean = |values: &[u8]| {
        (values.iter().map(|value| usize::from(*value)).sum::<usize>() / values.len()) as u8
    };
    let grey: Vec<u8> = pixels.chunks_exact(colours).map(mean).collect();
    let mut near = Vec::new();
    let blurred = |at: usize| {
        let (x, y) = (at % width, at / width);
        near.clear();
        for row in grey.chunks_exact(width).take(height.min(y + 2)).skip(y.saturating_sub(1)) {
            near.extend_from_slice(&row[x.saturating_sub(1)..width.min(x + 2)]);
        }
        mean(&near)
    };
    let pixels: Vec<u8> = (0..grey.len()).map(blurred).collect();
    (Image { colours: 1, ..image }, pixels.into())
}

fn write(image: &Image, pixels: &[u8]) -> Result<(), BoxError> {
    let Image { file, width, height, .. } = image;
    let name = match file {
        None => "made".to_owned(),
        Some(file) => {
            let path = Path::new(file).with_extension("blurred.pgm");
            let header = format!("P5\n{width} {height}\n255\n");
            fs::write(&path, [header.as_bytes(), pixels].concat())?;
            path.display().to_string()
        }
    };
    let sum: usize = pixels.iter().map(|pixel| usize::from(*pixel)).sum();
    println!("{name}: {width} x {height}, mean brightness {}", sum / pixels.len().max(1));
    Ok(())
}
